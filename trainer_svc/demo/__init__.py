"""The demo model: a tiny Qwen3 with its own tokenizer, warm-started from scripted demonstrators."""
