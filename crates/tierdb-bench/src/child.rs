//! Cases in processes of their own.

use crate::case::{self, Answer, Case, Outcome, Request};
use crate::failure::Failure;
use crate::group::Group;
use crate::store::Systems;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tierdb::ByteSize;

/// The hidden subcommand that runs a case.
pub const SUBCOMMAND: &str = "case";
/// How long a store writes before it is killed.
const WRITE_BEFORE_KILL: Duration = Duration::from_millis(500);

/// Runs `case` in a process of its own, and with `recovery` kills that and times what follows.
///
/// # Errors
/// The failure of the case.
pub fn measure(case: &Case) -> Result<Outcome, Failure> {
    case::prepare(case)?;
    let outcome = held(case);
    case::clean(case);
    outcome
}

/// In the control group that the case asks for, if it does.
fn held(case: &Case) -> Result<Outcome, Failure> {
    let Some(bytes) = case.group_bytes else { return measured(case, None) };
    let group = Group::new(bytes)?;
    measured(case, Some(&group)).map_err(|failure| {
        if !group.has_killed() {
            return failure;
        }
        Failure::Child(format!(
            "it needs more memory than the {} of its control group: {failure}",
            ByteSize(bytes)
        ))
    })
}

fn measured(case: &Case, group: Option<&Group>) -> Result<Outcome, Failure> {
    let (mut child, answer) = ask(&Request::Measure(case.clone()), group)?;
    let Answer::Outcome(mut outcome) = answer else { return Err(refused(&mut child, answer)) };
    if case.recovery {
        std::thread::sleep(WRITE_BEFORE_KILL);
        // A process that has ended by itself has failed, and says so below.
        let _ = child.kill();
        let ended = child.wait().map_err(|e| Failure::Child(e.to_string()))?;
        if ended.code().is_some() {
            return Err(Failure::Child(format!("it ended before it was killed, with {ended}")));
        }
        let request = Request::Recover(case.clone());
        let (mut child, answer) = ask(&request, group)?;
        let Answer::Recovered(seconds) = answer else { return Err(refused(&mut child, answer)) };
        outcome.recover_seconds = Some(seconds);
        wait(&mut child)?;
    } else {
        wait(&mut child)?;
    }
    Ok(*outcome)
}

fn refused(child: &mut Child, answer: Answer) -> Failure {
    let _ = child.wait();
    match answer {
        Answer::Failed(why) => Failure::Child(why),
        other => Failure::Child(format!("it answered {other:?}")),
    }
}

fn wait(child: &mut Child) -> Result<(), Failure> {
    child.wait().map(drop).map_err(|e| Failure::Child(e.to_string()))
}

fn ask(request: &Request, group: Option<&Group>) -> Result<(Child, Answer), Failure> {
    let lost = |e: &dyn std::fmt::Display| Failure::Child(e.to_string());
    let program = std::env::current_exe().map_err(|e| lost(&e))?;
    let mut child = Command::new(program)
        .arg(SUBCOMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| lost(&e))?;
    // Until it is asked it has hardly any memory of its own.
    if let Some(Err(refused)) = group.map(|group| group.add(child.id())) {
        let _ = child.kill();
        let _ = child.wait();
        return Err(refused);
    }
    let text = serde_json::to_string(request).map_err(|e| lost(&e))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.as_bytes()).map_err(|e| lost(&e))?;
    }
    let Some(stdout) = child.stdout.take() else { return Err(lost(&"no output")) };
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line).map_err(|e| lost(&e))?;
    if line.is_empty() {
        let ended = child.wait().map_err(|e| lost(&e))?;
        return Err(Failure::Child(format!("it ended with {ended}")));
    }
    let answer = serde_json::from_str(&line).map_err(|e| lost(&e))?;
    Ok((child, answer))
}

/// What a process does that was started for a case: reads the request from `input`, and answers on `output`
/// with one line.
///
/// # Errors
/// `Io` if it cannot read or answer; failures of the case are in the answer.
pub fn serve(
    systems: &Systems,
    input: &mut dyn Read,
    output: &mut dyn Write,
    progress: &case::CaseProgress<'_>,
) -> Result<(), Failure> {
    // Whoever asked is gone: nobody wants the answer, nor a store that is written until it is killed.
    let kill = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(kill))
        .map_err(|e| Failure::Child(e.to_string()))?;
    let mut text = String::new();
    input.read_to_string(&mut text).map_err(|e| Failure::io("cannot read", "standard input", e))?;
    let request = serde_json::from_str(&text).map_err(|e| Failure::Invalid(format!("not a case: {e}")))?;
    let mut reply = |answer: &Answer| {
        let line = serde_json::to_string(answer).map_err(|e| Failure::Child(e.to_string()))?;
        let told = writeln!(output, "{line}").and_then(|()| output.flush());
        told.map_err(|e| Failure::io("cannot write", "standard output", e))
    };
    let (Request::Measure(case) | Request::Recover(case)) = &request;
    if case.unchecked {
        tierdb_base::checksum::leave_out_long();
    }
    let failure = match request {
        Request::Measure(case) => case::run(systems, &case, progress, &mut |outcome| {
            reply(&Answer::Outcome(Box::new(outcome.clone())))
        })
        .err(),
        Request::Recover(case) => match case::recover(systems, &case) {
            Ok(seconds) => return reply(&Answer::Recovered(seconds)),
            Err(failure) => Some(failure),
        },
    };
    failure.map_or(Ok(()), |failure| reply(&Answer::Failed(failure.to_string())))
}
