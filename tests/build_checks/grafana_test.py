#!/usr/bin/env python3
"""Checks configs/grafana: the alert rules by promtool, and that dashboard and rules use only metrics and labels that docs/users/metrics.md has."""

import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "configs/grafana"


# The parts of Grafana's dashboard schema (kinds/dashboard/dashboard_kind.cue in its repository) that the dashboard uses. A key with ? may be
# missing; only "..." allows others; a set has the values, a tuple other shapes, an inner list the shape of each item.
SOURCE = {"type?": str, "uid?": str}
STAT = {"textMode?": {"auto", "value", "value_and_name", "name", "none"}, "colorMode?": {"value", "background", "background_solid", "none"}, "reduceOptions?": {"calcs": [str], "...": None}}
FIELDS = {"unit?": str, "min?": (int, float), "max?": (int, float), "decimals?": int, "custom?": {"...": None}}
PANEL = {"id": int, "title": str, "type": {"stat", "timeseries"}, "datasource": SOURCE, "options": STAT, "fieldConfig": {"defaults": FIELDS, "overrides": [{"...": None}]},
         "gridPos": {"h": range(1, 100), "w": range(1, 25), "x": range(24), "y": range(1000)}, "targets": [{"refId": str, "datasource": SOURCE, "expr": str, "legendFormat": str}]}
VARIABLE = {"name": str, "type": {"query", "adhoc", "constant", "datasource", "interval", "textbox", "custom", "system"}, "label?": str, "query": (str, {"query": str, "refId": str}),
            "datasource?": SOURCE, "definition?": str, "refresh?": {0, 1, 2}, "sort?": range(9), "multi?": bool, "includeAll?": bool, "current?": {"...": None}, "options?": [{"...": None}]}
ANNOTATION = {"name": str, "datasource": SOURCE, "enable": bool, "iconColor": str, "expr": str, "titleFormat?": str}
DASHBOARD = {"title": str, "uid": str, "schemaVersion": range(36, 65536), "version": int, "editable": bool, "tags": [str], "time": {"from": str, "to": str}, "refresh": str, "timezone": str,
             "templating": {"list": [VARIABLE]}, "annotations": {"list": [ANNOTATION]}, "panels": [PANEL]}


def misfits(value, shape, place="dashboard"):
    """Returns the places of a value that its shape does not allow."""
    if isinstance(shape, tuple):
        return [] if any(not misfits(value, one) for one in shape) else [place]
    if isinstance(shape, (set, range)):
        return [] if type(value) in (str, int) and value in shape else [place]
    if isinstance(shape, list):
        return [place] if not isinstance(value, list) else [found for i, item in enumerate(value) for found in misfits(item, shape[0], f"{place}[{i}]")]
    if not isinstance(shape, dict):
        return [] if type(value) is shape else [place]
    if not isinstance(value, dict):
        return [place]
    known = {key.rstrip("?"): one for key, one in shape.items()}
    wrong = [f"{place}.{key} is missing" for key in shape if not key.endswith("?") and key not in ("...", *value)]
    wrong += [f"{place}.{key} is unknown" for key in value if key not in known and "..." not in shape]
    return wrong + [found for key in value if key in known for found in misfits(value[key], known[key], f"{place}.{key}")]


def documented():
    """Returns the labels of each metric by its name."""
    text = (ROOT / "docs/users/metrics.md").read_text()
    return {name: set((labels or "").strip("{}").split(",")) - {""} | {"job", "run"}
            for name, labels in re.findall(r"`(ddplaunch_[a-z_]+)(\{[a-z,]+\})?`", text)}


class Grafana(unittest.TestCase):
    def check_expression(self, expression):
        known = documented()
        names = re.findall(r"\bddplaunch_[a-z_]+", expression)
        self.assertTrue(names, expression)
        for name in names:
            base = re.sub("_(bucket|sum|count)$", "", name)
            self.assertIn(base, known, expression)
            for labels in re.findall(name + r"\{([^}]*)\}", expression):
                for label in re.findall(r"(\w+)=", labels):
                    self.assertIn(label, known[base], expression)

    def test_the_dashboard_has_known_metrics_and_no_overlapping_panels(self):
        dashboard = json.loads((GRAFANA / "dashboard.json").read_text())
        taken = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
            self.assertFalse(cells & taken, f'the panel "{panel["title"]}" covers another one; change its gridPos in {GRAFANA}/dashboard.json')
            self.assertLessEqual(place["x"] + place["w"], 24, f'the panel "{panel["title"]}" ends beyond column 24; change its gridPos in {GRAFANA}/dashboard.json')
            taken |= cells
            for target in panel["targets"]:
                self.check_expression(target["expr"])
        self.assertEqual(len({panel["id"] for panel in dashboard["panels"]}), len(dashboard["panels"]),
                         f"two panels have one id; give each panel in {GRAFANA}/dashboard.json its own")
        for annotation in dashboard["annotations"]["list"]:
            self.check_expression(annotation["expr"])

    def test_the_dashboard_fits_grafanas_schema(self):
        dashboard = json.loads((GRAFANA / "dashboard.json").read_text())
        self.assertEqual(misfits(dashboard, DASHBOARD), [])
        for change, wrong in ((lambda: dashboard["panels"][0]["gridPos"].update(w=25), "dashboard.panels[0].gridPos.w"),
                              (lambda: dashboard["annotations"]["list"][0].pop("iconColor"), "dashboard.annotations.list[0].iconColor is missing"),
                              (lambda: dashboard["templating"]["list"][0].update(type="list"), "dashboard.templating.list[0].type"),
                              (lambda: dashboard.update(panel=[]), "dashboard.panel is unknown")):
            change()
            self.assertIn(wrong, misfits(dashboard, DASHBOARD))

    def test_the_rules_have_known_metrics(self):
        for expression in re.findall(r"expr: (?:\|\n)?(.*?)(?=\n +(?:for|labels):)", (GRAFANA / "alerts.yml").read_text(), re.S):
            self.check_expression(expression)

    def test_promtool_accepts_and_tests_the_rules(self):
        if not shutil.which("promtool"):
            self.skipTest("no promtool: apt install prometheus")
        for words in (["check", "rules", GRAFANA / "alerts.yml"], ["test", "rules", ROOT / "tests/build_checks/alerts.test.yml"]):
            done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
