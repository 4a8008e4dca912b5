"""Every decision of Headrace: pure, standard library only. Time, chance and ids arrive as arguments."""
