"""Jobs: submission, lists, and what people want of them (pause, resume, cancel)."""
