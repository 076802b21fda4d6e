"""The commands of `keelmq backup` and `keelmq restore`."""

import typer

from cli.backup.controllers import backup_controllers, restore_controllers
from cli.backup.metadata import backup_metadata, restore_metadata
from cli.backup.store import backup_store, restore_store_command

backup = typer.Typer(
    no_args_is_help=True,
    help="Save the state of the controllers, or the store or the metadata of a broker, as it runs.",
)
backup.command("controllers")(backup_controllers)
backup.command("store")(backup_store)
backup.command("metadata")(backup_metadata)

restore = typer.Typer(
    no_args_is_help=True,
    help="Make new controllers, or a new broker, start with what was saved; or restore metadata.",
)
restore.command("controllers")(restore_controllers)
restore.command("store")(restore_store_command)
restore.command("metadata")(restore_metadata)
