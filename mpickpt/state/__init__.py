"""State: what owners hold, how it is named, cut, declared and proven complete. Knows no file and no MPI."""
