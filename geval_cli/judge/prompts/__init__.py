"""The texts that judges are shown, one file each; `$name` stands for what `geval_cli.judge.prompt` puts in."""
