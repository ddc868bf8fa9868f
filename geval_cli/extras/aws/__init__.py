"""Models on Amazon Bedrock through its Converse API, and requests signed with AWS credentials."""
