"""Plants errors of one line into the core, runs the tests that execute these lines, and says how many are found."""
