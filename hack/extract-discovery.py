#!/usr/bin/env python3
"""Extracts from a Google API discovery document what a fake of the API has to check.

Usage: extract-discovery.py METHOD... > crates/fake-clouds/data/compute-v1.json

The document is the one of the Go module google.golang.org/api, in the version below: `go mod
download` brings it. Kept are the named methods and every schema that they reach, without prose.
"""

import json
import subprocess
import sys

MODULE = "google.golang.org/api"
VERSION = "v0.315.0"
DOCUMENT = "compute/v1/compute-api.json"
# Google's front end takes these for every method; the document leaves them out.
SYSTEM_PARAMETERS = ["$alt", "$apiVersion"]
SCHEMA_KEYS = ("$ref", "type", "format", "pattern", "enum", "items", "properties",
               "additionalProperties")
PARAMETER_KEYS = ("location", "required", "type", "format", "pattern", "enum", "minimum",
                  "maximum", "repeated")


def document():
    asked = ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"]
    folder = json.loads(subprocess.run(asked, check=True, capture_output=True).stdout)["Dir"]
    with open(f"{folder}/{DOCUMENT}", encoding="utf-8") as file:
        return json.load(file)


def schema(node):
    """A schema without prose; `requiredBy` names the methods that need a property."""
    kept = {key: node[key] for key in SCHEMA_KEYS if key in node}
    if "properties" in kept:
        kept["properties"] = {name: schema(each) for name, each in kept["properties"].items()}
    for key in ("items", "additionalProperties"):
        if key in kept:
            kept[key] = schema(kept[key])
    required = node.get("annotations", {}).get("required")
    if required:
        kept["requiredBy"] = required
    return kept


def references(node):
    if "$ref" in node:
        yield node["$ref"]
    for each in node.get("properties", {}).values():
        yield from references(each)
    for key in ("items", "additionalProperties"):
        if key in node:
            yield from references(node[key])


def reached(schemas, roots):
    found, waiting = {}, list(roots)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = schema(schemas[name])
            waiting.extend(references(found[name]))
    return dict(sorted(found.items()))


def method(node):
    def parameter(each):
        return {key: each[key] for key in PARAMETER_KEYS if key in each}

    kept = {key: node[key] for key in ("id", "httpMethod", "path")}
    kept["parameters"] = {name: parameter(each) for name, each in node["parameters"].items()}
    for key in ("request", "response"):
        if key in node:
            kept[key] = node[key]["$ref"]
    return kept


def main():
    source = document()
    methods = []
    for name in sys.argv[1:]:
        resource, verb = name.split(".")
        methods.append(method(source["resources"][resource]["methods"][verb]))
    roots = [each[key] for each in methods for key in ("request", "response") if key in each]
    head = {"source": f"{MODULE} {VERSION} {DOCUMENT}", "revision": source["revision"],
            "servicePath": source["servicePath"],
            "systemParameters": SYSTEM_PARAMETERS}
    lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    parts = [json.dumps(each) for each in methods]
    lines.append('  "methods": [\n    ' + ",\n    ".join(parts) + "\n  ]")
    parts = [f"{json.dumps(name)}: {json.dumps(each)}"
             for name, each in reached(source["schemas"], roots).items()]
    lines.append('  "schemas": {\n    ' + ",\n    ".join(parts) + "\n  }")
    print("{\n" + ",\n".join(lines) + "\n}")


main()
