"""The ledger and the buffer of a job: what was issued, what came of it, what waits."""
