"""The texts that judges are shown, one file each; `geval_cli.judge.prompt` fills in `$name` placeholders."""
