"""What a job looks like in a terminal: tables and bars out of the API's answers, each a pure function."""
