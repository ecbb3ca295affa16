"""The JSON schemas of job files and of the user's settings (option_pages.py). Editors check and complete such files with them."""
import json
import re

import option_completion

FOLDER = "configs/schema"
WORDS = {"type": "array", "items": {"type": ["string", "number"]}, "minItems": 1}
WORKER = {"description": "the worker and its arguments; a text is divided as in sh", "anyOf": [{"type": "string"}, WORDS]}
VARIABLES = {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}


def is_choice(option):
    """Returns whether the placeholder has all values: "agent|worker"."""
    return bool(re.fullmatch(r"[a-z0-9|-]+", option["value"])) and "|" in option["value"]


def property_of(option):
    facts = {"description": option_completion.described(option) + (f" (default: {option['default']})" if option["default"] else "")}
    if not option["value"]:
        return {**facts, "type": "boolean"}
    if is_choice(option):
        # YAML 1.1 reads off as false, and 0 as a number.
        return {**facts, "enum": [each for word in option["value"].split("|") for each in YAML_VALUES.get(word, [word])]}
    value = {"type": ["string", "number"]}
    if not option["repeats"]:
        return {**facts, **value}
    return {**facts, "anyOf": [value, WORDS, *([VARIABLES] if "--env" in option["names"] else [])]}


YAML_VALUES = {"off": ["off", False], "0": ["0", 0]}


def schema(title, options, further):
    properties = {option["names"][-1].removeprefix("--"): property_of(option) for option in options}
    return json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "title": title, "type": "object", "additionalProperties": False,
                       "properties": {**properties, **further}}, indent=2, ensure_ascii=False) + "\n"


def schemas(printed):
    """Returns {path: text} of both schemas."""
    options = option_completion.named(printed["commands"]["ddplaunch"])

    def chosen(names):
        return [option for option in options if option["names"][-1].removeprefix("--") in names]

    return {f"{FOLDER}/job.schema.json": schema("ddplaunch job file", chosen(printed["job_file"]), {"worker": WORKER}),
            f"{FOLDER}/config.schema.json": schema("ddplaunch settings of a user", chosen(printed["settings"]), {})}
