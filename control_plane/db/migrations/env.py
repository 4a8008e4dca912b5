"""Alembic runs this file; the connection comes from control_plane.db.migrate."""

from alembic import context

from control_plane.db.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
