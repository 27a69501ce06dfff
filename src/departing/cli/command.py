"""Class of all commands: it refuses options that are repeated although they have one value."""

from typing import Any

from typer.core import TyperCommand, TyperOption


class Command(TyperCommand):
    """Command that keeps every value it is given: a list accumulates, and anything else is given once."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments; fail if an option with one value is repeated."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        given = set()
        for option in order:
            if isinstance(option, TyperOption) and not (option.multiple or option.is_flag):
                if option.name in given:
                    ctx.fail(f"Option '{max(option.opts, key=len)}' is given more than once; give it once.")
                given.add(option.name)
        return super().parse_args(ctx, args)
