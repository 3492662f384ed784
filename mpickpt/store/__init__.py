"""Where the bytes live: files, and nothing of MPI."""
