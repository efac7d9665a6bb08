"""Operations on tasks: each module of operations has a `.sql` file with its statements."""
