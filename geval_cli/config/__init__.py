"""The config room: from YAML to a typed suite, with every problem placed and explained."""
