"""One module per group of commands; each is imported when one of its commands runs."""
