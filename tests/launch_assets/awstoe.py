"""The component documents of EC2 Image Builder as a JSON schema.

After "Use the AWSTOE component document framework for custom components" and "Action modules supported by AWSTOE
component manager" in the service's user guide; of the actions, those that are used here.
"""

from typing import Any

TEXT = {"type": "string", "minLength": 1}
COMMANDS = {
    "type": "object",
    "required": ["commands"],
    "properties": {"commands": {"type": "array", "minItems": 1, "items": TEXT}},
    "additionalProperties": False,
}
DOWNLOADS = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["source", "destination"],
        "properties": {
            "source": TEXT,
            "destination": TEXT,
            "expectedBucketOwner": TEXT,
            "overwrite": {"type": "boolean"},
        },
        "additionalProperties": False,
    },
}


def _action(name: str, inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["name", "action", "inputs"],
        "properties": {
            "name": TEXT,
            "action": {"const": name},
            "timeoutSeconds": {"type": "integer", "minimum": -1},
            "onFailure": {"enum": ["Abort", "Continue", "Ignore"]},
            "maxAttempts": {"type": "integer", "minimum": 1},
            "inputs": inputs,
        },
        "additionalProperties": False,
    }


def _entries(required: list[str], properties: dict[str, Any]) -> dict[str, Any]:
    """A list of mappings with one name each."""
    body = {"type": "object", "required": required, "properties": properties, "additionalProperties": False}
    return {
        "type": "array",
        "items": {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": body},
    }


DOCUMENT: dict[str, Any] = {
    "type": "object",
    "required": ["schemaVersion", "phases"],
    "properties": {
        "name": TEXT,
        "description": TEXT,
        "schemaVersion": {"const": 1.0},
        "parameters": _entries(["type"], {"type": {"const": "string"}, "default": TEXT, "description": TEXT}),
        "constants": _entries(["type", "value"], {"type": {"const": "string"}, "value": TEXT}),
        "phases": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "steps"],
                "properties": {
                    "name": {"enum": ["build", "validate", "test"]},
                    "steps": {
                        "type": "array",
                        "minItems": 1,
                        "items": {"oneOf": [_action("ExecuteBash", COMMANDS), _action("S3Download", DOWNLOADS)]},
                    },
                },
                "additionalProperties": False,
            },
        },
    },
    "additionalProperties": False,
}
