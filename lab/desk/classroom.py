"""The verdicts of `lab check --json` as GitHub Classroom counts points.

    python -m lab.desk.classroom check.json >> "$GITHUB_OUTPUT"

prints `result=` and JSON in base64: what GitHub's classroom-resources/autograding-grading-reporter
shows as a table and hands in as a sum.
"""

import base64
import json
import sys
from pathlib import Path


def rows(reports):
    """A row for each verdict with points.
    What could not be measured here has none, and is no row.
    """
    for report in reports:
        for exercise in report["exercises"]:
            if exercise["points"] is not None:
                yield {"name": f"{report['lesson']}/{exercise['name']}",
                       "status": "pass" if exercise["verdict"] == "pass" else "fail",
                       "score": exercise["points"], "max_score": exercise["max_points"],
                       "message": exercise["message"]}


def result(reports):
    """What the reporter reads.
    An exercise that no one attempted is no failure of the run."""
    verdicts = {e["verdict"] for report in reports for e in report["exercises"]}
    tests = list(rows(reports))
    return {"version": 1, "status": "fail" if verdicts & {"fail", "error"} else "pass",
            "max_score": sum(test["max_score"] for test in tests), "tests": tests}


def main(path):
    reports = json.loads(Path(path).read_text("utf-8"))     # of one lesson it is no list
    text = json.dumps(result(reports if isinstance(reports, list) else [reports]))
    print(f"result={base64.b64encode(text.encode()).decode()}")


if __name__ == "__main__":
    main(sys.argv[1])
