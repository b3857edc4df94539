//! What the machine can still give.

use std::fs::read_to_string;

/// Bytes that may be mapped before the machine, or our control group, runs short. An
/// over-large memfd is not refused by the kernel: it ends in an out-of-memory kill.
pub(crate) fn available() -> usize {
    let machine = meminfo().unwrap_or(usize::MAX);
    machine.min(control_group().unwrap_or(usize::MAX))
}

fn meminfo() -> Option<usize> {
    let text = read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<usize>().ok().map(|kib| kib << 10)
}

fn control_group() -> Option<usize> {
    let own = read_to_string("/proc/self/cgroup").ok()?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
    let folder = format!("/sys/fs/cgroup{path}");
    let limit: usize = read_to_string(format!("{folder}/memory.max")).ok()?.trim().parse().ok()?;
    let now: usize = read_to_string(format!("{folder}/memory.current")).ok()?.trim().parse().ok()?;
    // What is cached of files counts as used but is let go of as soon as it is wanted.
    let stat = read_to_string(format!("{folder}/memory.stat")).unwrap_or_default();
    let cached = ["active_file ", "inactive_file "].iter().filter_map(|name| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().parse::<usize>().ok()
    });
    Some(limit.saturating_sub(now.saturating_sub(cached.sum())))
}
