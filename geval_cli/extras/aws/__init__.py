"""Models in Amazon's cloud: Bedrock's Converse API, and requests signed with AWS credentials."""
