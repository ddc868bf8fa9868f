"""Count what a run would send and cost, before it is started: `--plan`."""
