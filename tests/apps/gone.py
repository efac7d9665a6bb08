"""An app whose database is not there, and which does not wait for it."""

from horsies import AppConfig, Horsies, PostgresConfig

URL = "postgresql://somebody:my-secret@127.0.0.1:1/nothing"  # nobody listens on port 1

app = Horsies(AppConfig(broker=PostgresConfig(database_url=URL, connect_timeout_s=1)))
