//! P3's experiments: files by multicast beside reliable connections (P3.8 to P3.10).
//!
//! The links and headers are the testbed's (`calibration.toml`); hosts cost nothing. So what is
//! simulated is the protocol on the wire, and not what the paper's threads cost its processors.

use std::time::Duration;

use fabricast_sim::Failure;
use fabricast_sim::fault::LinkFaults;
use fabricast_sim::ibrmp::{Connections, FileExperiment, FileResult, Shape, transfer_files};

use fabricast::proto::Time;
use fabricast::proto::ibrmp::{Credits, HEADER_LEN};

use crate::calibration::{Calibration, Testbed};

use super::experiment::{Effort, Experiment, Findings, Found, Stopped, Table};
use super::plot::{Plot, Points, Series, column, curve};

/// P3's experiments, in the paper's order.
pub(super) const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "p3-large",
        testbed: Testbed::P3,
        title: "64 GiB to 1 to 5 receivers",
        reproduces: "figures 5a and 6",
        method: "1 GiB is simulated (16 MiB with --quick), and the times are multiplied: the few \
                 messages at both ends of a file take microseconds. RC: a connection to each \
                 receiver, 32 messages of 2048 bytes under way, an ACK for each. MPI_Bcast: the \
                 pipeline of 128 KiB from host to host that Open MPI 1.6 has for long messages.",
        run: large,
    },
    Experiment {
        name: "p3-files",
        testbed: Testbed::P3,
        title: "100 files of 50 MiB at once to 1 to 5 receivers",
        reproduces: "figure 5b",
        method: "Files of 5 MiB are simulated (160 KiB with --quick), and the times are \
                 multiplied. RC has the same bytes, as in p3-large.",
        run: files,
    },
    Experiment {
        name: "p3-loss",
        testbed: Testbed::P3,
        title: "100 files of 50 MiB at once to 5 receivers that drop multicast",
        reproduces: "figure 5c",
        method: "As p3-files. Each receiver drops each multicast message with the same \
                 probability; the reliable channels lose nothing.",
        run: losses,
    },
    Experiment {
        name: "p3-short",
        testbed: Testbed::P3,
        title: "2 bytes to 1 to 5 receivers",
        reproduces: "figure 6",
        method: "The time until the last receiver has the bytes, and until the sender knows that \
                 (the file is closed). RC and MPI_Bcast's binomial tree: until the last receiver \
                 has the bytes. Hosts cost nothing, so these are times of wires and switches.",
        run: short,
    },
];

/// Receivers in the paper's figures.
const RECEIVERS: [u64; 5] = [1, 2, 3, 4, 5];
/// Longest segment of MPI_Bcast's pipeline in bytes.
const SEGMENT: u64 = 128 << 10;
/// Bytes that are simulated of MPI_Bcast's pipeline.
const CHAIN: u64 = 1 << 30;
const MIB: u64 = 1 << 20;

/// The testbed's wires.
struct Bed(Calibration);

impl Bed {
    fn new() -> Bed {
        Bed(Calibration::of(Testbed::P3))
    }

    fn rate(&self) -> u64 {
        (1e9 / self.0.value("byte_ns")) as u64
    }

    fn delay(&self) -> Duration {
        Duration::from_nanos((self.0.value("hop_us") * 1e3) as u64)
    }

    /// Files to this many receivers, of which each drops a part of multicast.
    fn files(&self, receivers: u64, files: Vec<u64>, loss: f64) -> Result<FileResult, Failure> {
        let c = &self.0;
        let experiment = FileExperiment {
            receivers: receivers as u32,
            files,
            slots: 128,
            block: (c.count("mtu_bytes") - HEADER_LEN as u64) as u32,
            credits: Credits {
                messages: c.count("outstanding") as u32,
                ..Credits::PAPER
            },
            rate: self.rate(),
            delay: self.delay(),
            overhead: c.count("rc_header_bytes"),
            multicast_overhead: c.count("ud_header_bytes") - c.count("rc_header_bytes"),
            is_checked: false,
            faults: LinkFaults::uniform(loss),
            ..FileExperiment::default()
        };
        transfer_files(&experiment).map_err(|what| Failure {
            at: Time::ZERO,
            what,
            out_of_bounds: false,
        })
    }

    /// Bytes by connections to this many receivers.
    fn connections(&self, shape: Shape, receivers: u64, len: u64) -> Duration {
        let (mtu, header) = (self.0.count("mtu_bytes"), self.0.count("rc_header_bytes"));
        let message = match shape {
            Shape::Chain => SEGMENT,
            Shape::Direct | Shape::Binomial => mtu,
        };
        let of = Connections {
            shape,
            receivers: receivers as u32,
            len,
            message,
            outstanding: self.0.count("outstanding") as u32,
            rate: self.rate(),
            delay: self.delay(),
            overhead: header * (message / mtu),
        };
        of.time()
    }
}

fn found(claim: &'static str, number: f64, remark: &'static str) -> Found {
    Found {
        claim,
        number,
        remark,
    }
}

fn plot(name: &'static str, title: &str, x: &'static str, series: Vec<Series>) -> Plot {
    Plot {
        name,
        title: title.into(),
        x,
        y: "s",
        log_y: false,
        series,
    }
}

fn large(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let bed = Bed::new();
    let all = bed.0.count("large_gib") << 30;
    let len = if effort.quick { 16 * MIB } else { 1 << 30 };
    let times = (all / len) as f64;
    let rows = effort.each(&RECEIVERS, |&n| {
        let ibrmp = bed.files(n, vec![len], 0.0)?.time;
        let direct = bed.connections(Shape::Direct, n, len);
        // The pipeline fills anew for each part, which is short beside the part.
        let chain = bed.connections(Shape::Chain, n, CHAIN);
        let chain = chain.as_secs_f64() * (all / CHAIN) as f64;
        let [ibrmp, direct] = [ibrmp, direct].map(|time| time.as_secs_f64() * times);
        Ok([ibrmp, direct, chain])
    })?;
    let mut table = Table::new(
        format!("s for 64 GiB, from {} MiB", len / MIB),
        &["receivers", "IBRMP", "RC", "MPI_Bcast"],
    );
    for (n, row) in RECEIVERS.iter().zip(&rows) {
        table.row(n, *row);
    }
    let five = rows[RECEIVERS.len() - 1];
    let line = |name: &str, i| curve(name, Points::Simulated, column(&RECEIVERS, &rows, i));
    Ok(Findings {
        tables: vec![table],
        plots: vec![plot(
            "p3-large",
            "64 GiB (P3 figures 5a and 6)",
            "receivers",
            vec![line("IBRMP", 0), line("RC", 1), line("MPI_Bcast", 2)],
        )],
        found: vec![
            found(
                "p3-unicast-5",
                five[1],
                "the rate of the sender's port was chosen for this number",
            ),
            found(
                "p3-multicast",
                five[0],
                "predicted from the port's rate, which only RC was asked for, and from the headers \
                 that the InfiniBand specification gives multicast datagrams",
            ),
            found(
                "p3-mpi",
                five[2] / five[0],
                "five receivers; over full-duplex links a pipeline takes as long as one transfer, \
                 with smaller headers than multicast's. What made Open MPI 1.6 slower in the paper \
                 (hosts that copy and forward) costs nothing in this simulation",
            ),
        ],
    })
}

/// Seconds for the paper's 100 files: IBRMP's with this loss.
fn files_s(is_quick: bool, bed: &Bed, n: u64, loss: f64) -> Result<[f64; 2], Failure> {
    let (count, whole) = (bed.0.count("files"), bed.0.count("file_mib") * MIB);
    let len = if is_quick { whole / 320 } else { whole / 10 };
    let times = (whole / len) as f64;
    let result = bed.files(n, vec![len; count as usize], loss)?;
    let seconds = result.time.as_secs_f64() * times;
    let all = (result.multicast * n) as f64;
    Ok([seconds, 100.0 * (1.0 - result.by_channel as f64 / all)])
}

/// Seconds for the same bytes by RC.
fn files_rc_s(is_quick: bool, bed: &Bed, n: u64) -> f64 {
    let whole = bed.0.count("files") * bed.0.count("file_mib") * MIB;
    let len = if is_quick { whole / 320 } else { whole / 10 };
    let time = bed.connections(Shape::Direct, n, len);
    time.as_secs_f64() * (whole / len) as f64
}

fn files(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let bed = Bed::new();
    let is_quick = effort.quick;
    let rows = effort.each(&RECEIVERS, |&n| {
        let [ibrmp, _] = files_s(is_quick, &bed, n, 0.0)?;
        Ok([ibrmp, files_rc_s(is_quick, &bed, n)])
    })?;
    let mut table = Table::new("s for 100 files of 50 MiB", &["receivers", "IBRMP", "RC"]);
    for (n, row) in RECEIVERS.iter().zip(&rows) {
        table.row(n, *row);
    }
    let five = rows[RECEIVERS.len() - 1];
    let line = |name: &str, i| curve(name, Points::Simulated, column(&RECEIVERS, &rows, i));
    Ok(Findings {
        tables: vec![table],
        plots: vec![plot(
            "p3-files",
            "100 files (P3 figure 5b)",
            "receivers",
            vec![line("IBRMP", 0), line("RC", 1)],
        )],
        found: vec![found(
            "p3-files",
            five[0],
            "on the wire 100 files take as long as one of their length. The paper's 3.6 s is \
                 half the rate of its own 64 GiB; it has a thread for each file, which may be why, \
                 and hosts cost nothing here",
        )],
    })
}

fn losses(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let bed = Bed::new();
    let percents = effort.of(&[0, 10, 25, 50, 75, 90], &[0, 90]);
    let receivers = bed.0.count("receivers");
    let is_quick = effort.quick;
    let rows = effort.each(&percents, |&percent| {
        files_s(is_quick, &bed, receivers, percent as f64 / 100.0)
    })?;
    let unicast = files_rc_s(effort.quick, &bed, receivers);
    let mut table = Table::new(
        "s for 100 files of 50 MiB to 5 receivers, by the multicast that each drops",
        &["loss, %", "IBRMP", "by multicast, %"],
    );
    for (percent, row) in percents.iter().zip(&rows) {
        table.row(percent, *row);
    }
    let (clean, most) = (rows[0][0], rows[rows.len() - 1][0]);
    let mut sums = Table::new("s at 90 % beside the clean times", &["", "s"]);
    sums.row("IBRMP, nothing lost", [clean]);
    sums.row("RC, nothing lost", [unicast]);
    sums.row("both together", [clean + unicast]);
    sums.row("IBRMP, 90 % lost", [most]);
    let line = curve("IBRMP", Points::Simulated, column(&percents, &rows, 0));
    Ok(Findings {
        tables: vec![table, sums],
        plots: vec![plot(
            "p3-loss",
            "100 files, by loss (P3 figure 5c)",
            "loss, %",
            vec![line],
        )],
        found: vec![found(
            "p3-loss-90",
            most,
            "too fast by what the 100 files are too fast without losses (p3-files)",
        )],
    })
}

fn short(effort: &Effort<'_>) -> Result<Findings, Stopped> {
    let bed = Bed::new();
    let us = |time: Duration| time.as_nanos() as f64 / 1e3;
    let rows = effort.each(&RECEIVERS, |&n| {
        let files = bed.files(n, vec![2], 0.0)?;
        let direct = bed.connections(Shape::Direct, n, 2);
        let tree = bed.connections(Shape::Binomial, n, 2);
        Ok([files.latency, files.time, direct, tree].map(us))
    })?;
    let mut table = Table::new(
        "µs for 2 bytes",
        &["receivers", "IBRMP", "file closed", "RC", "MPI_Bcast"],
    );
    for (n, row) in RECEIVERS.iter().zip(&rows) {
        table.row(n, *row);
    }
    Ok(Findings {
        tables: vec![table],
        ..Findings::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the tables show would look otherwise if answers were multicast, or none were needed.
    #[test]
    fn the_time_at_90_percent_is_the_sum_of_both_clean_times() {
        let bed = Bed::new();
        let (len, seconds) = (8 * MIB, |time: Duration| time.as_secs_f64());
        let copied = |n| seconds(bed.connections(Shape::Direct, n, len));
        let files = |loss| seconds(bed.files(5, vec![len], loss).unwrap().time);
        let sum = files(0.0) + copied(5);
        assert!((files(0.9) / sum - 1.0).abs() < 0.10);
        for loss in [0.0, 0.5, 0.75] {
            assert!(files(loss) / sum < 0.90, "{loss}");
        }
    }
}
