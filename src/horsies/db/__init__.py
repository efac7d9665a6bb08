"""The door to PostgreSQL: the only room that imports psycopg."""
