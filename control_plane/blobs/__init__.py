"""Content-addressed blobs: token arrays and grading documents, as compressed parts in PostgreSQL."""
