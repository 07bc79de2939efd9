"""`mtplx doctor`: what is here, and what to fix."""

from dataclasses import asdict
from typing import Annotated

import typer

from mtplx.cli.checks import (
    Finding,
    blas_finding,
    compiler_finding,
    mlx_findings,
    package_findings,
    platform_finding,
    python_finding,
    this_host,
)
from mtplx.cli.output import write, write_json
from mtplx.cli.places import disk_finding, folder_findings, model_findings, profile_findings


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look for what keeps MTPLX from running, or from running fast.

    Ends with 1 where something has to be fixed, with 0 otherwise.
    """
    findings = examine()
    broken = any(finding.broken for finding in findings)
    if json:
        write_json({"ok": not broken, "findings": [asdict(finding) for finding in findings]})
    else:
        write(doctor_text(findings))
    if broken:
        raise typer.Exit(1)


def examine() -> list[Finding]:
    """Everything that is looked at, in the order it is told."""
    host = this_host()
    mlx = mlx_findings(host)
    findings: list[Finding | None] = [platform_finding(host), python_finding(host)]
    findings += package_findings()
    findings += mlx
    if not any(finding.broken for finding in mlx):
        findings.append(blas_finding())
        findings += profile_findings()
    findings.append(compiler_finding(host))
    findings += [*folder_findings(), *model_findings(), disk_finding()]
    return [finding for finding in findings if finding is not None]


def doctor_text(findings: list[Finding]) -> str:
    """A line or two for each finding, and the verdict."""
    lines = []
    for finding in findings:
        word = "fix" if finding.broken else "could" if finding.remedy else "ok"
        lines.append(f"{word:<7}{finding.subject:<10}{finding.text}")
        if finding.remedy:
            lines.append(f"{'':<17}-> {finding.remedy}")
    num_broken = sum(finding.broken for finding in findings)
    num_advice = sum(finding.remedy is not None and not finding.broken for finding in findings)
    lines += ["", _verdict(num_broken, num_advice)]
    return "\n".join(lines) + "\n"


def _verdict(num_broken: int, num_advice: int) -> str:
    if num_broken:
        return f"{num_broken} to fix before MTPLX can run (marked fix)."
    if num_advice:
        return f"All is well; {num_advice} could be better (marked could)."
    return "All is well."
