/** Findings that are not OK: what is wrong, what to do next, and the command. */

import { useState } from "preact/hooks";
import type { GroupStatus, Problem } from "../api/types";
import { groupLink, groupOf } from "../lib/cluster";
import { plural } from "../lib/format";
import { Command, VerdictBadge } from "./basic";

const FIRST = 6;

export function Problems({ problems, groups }: { problems: readonly Problem[]; groups: readonly GroupStatus[] }) {
  const [isAll, setAll] = useState(false);
  const shown = isAll ? problems : problems.slice(0, FIRST);
  return (
    <>
      <ul class="problems">
        {shown.map((problem) => (
          <li key={`${problem.check} ${problem.subject} ${problem.text}`}>
            <VerdictBadge verdict={problem.level} />
            <div>
              <p>
                <Subject problem={problem} groups={groups} /> {problem.text}
              </p>
              {problem.nextStep && <p class="next"><b>Next:</b> {problem.nextStep}</p>}
              {problem.command && <Command line={problem.command} />}
            </div>
          </li>
        ))}
      </ul>
      {problems.length > FIRST && (
        <button type="button" onClick={() => setAll(!isAll)}>
          {isAll ? "Show the worst only" : `Show ${plural(problems.length - FIRST, "more problem")}`}
        </button>
      )}
    </>
  );
}

function Subject({ problem, groups }: { problem: Problem; groups: readonly GroupStatus[] }) {
  const group = groupOf(problem, groups);
  return group ? <a href={groupLink(group)}><b>{problem.subject}</b></a> : <b>{problem.subject}</b>;
}
