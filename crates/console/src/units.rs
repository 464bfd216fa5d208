//! Numbers with units, as people write them.

use std::time::Duration;

use fabricast::config::INJECT_MAX;
pub use fabricast::text::bytes;

/// Splits a text into its number and the unit behind it.
fn split(s: &str) -> Result<(f64, &str), String> {
    let s = s.trim();
    let end = s
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(s.len());
    let (number, unit) = s.split_at(end);
    match number.parse::<f64>() {
        Ok(n) if n.is_finite() => Ok((n, unit.trim())),
        _ => Err(format!("{s:?} does not begin with a number")),
    }
}

/// Parses a duration: `10s`, `500ms`, `2m`, `1h`, or plain seconds.
pub fn duration(s: &str) -> Result<Duration, String> {
    let (n, unit) = split(s)?;
    let seconds = match unit {
        "" | "s" | "sec" => n,
        "ms" => n / 1e3,
        "m" | "min" => n * 60.0,
        "h" => n * 3600.0,
        _ => return Err(format!("unknown unit {unit:?}: use ms, s, m or h")),
    };
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

/// Parses a time that is not zero.
pub fn some_time(s: &str) -> Result<Duration, String> {
    let time = duration(s)?;
    (!time.is_zero())
        .then_some(time)
        .ok_or_else(|| "a time of more than 0".into())
}

/// Parses a rate, in bytes per second: `500Mbit`, `1Gbit`, `100MB/s`. A bare `500M` means bits, as
/// with other network tools.
pub fn rate(s: &str) -> Result<u64, String> {
    let (n, unit) = split(s)?;
    let unit = unit.trim_end_matches("/s").trim_end_matches("ps");
    let (prefix, per) = match unit {
        u if u.ends_with("bit") => (&u[..u.len() - 3], 1.0 / 8.0),
        u if u.ends_with('b') => (&u[..u.len() - 1], 1.0 / 8.0),
        u if u.ends_with('B') => (&u[..u.len() - 1], 1.0),
        u => (u, 1.0 / 8.0),
    };
    let scale = match prefix {
        "" => 1.0,
        "k" | "K" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "Ki" => 1024.0,
        "Mi" => 1024.0 * 1024.0,
        "Gi" => 1024.0 * 1024.0 * 1024.0,
        _ => return Err(format!("unknown unit {unit:?}: write 500Mbit or 60MB/s")),
    };
    match (n * scale * per) as u64 {
        0..1000 => Err("less than 8 kbit/s is no rate to send at".into()),
        rate => Ok(rate),
    }
}

/// The rate of an emulated link in bytes per second; `None` means that no link is emulated.
#[derive(Clone, Copy, Debug)]
pub struct Link(pub Option<u64>);

/// Parses the rate of an emulated link, or `off`.
pub fn link(s: &str) -> Result<Link, String> {
    match s {
        "off" => Ok(Link(None)),
        s => rate(s).map(|rate| Link(Some(rate))),
    }
}

/// Parses a number of bytes: `1472`, `64K`, `256MiB`, `1GB`.
pub fn size(s: &str) -> Result<u64, String> {
    let (n, unit) = split(s)?;
    let scale: u64 = match unit {
        "" | "B" => 1,
        "k" | "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        "T" | "TiB" => 1 << 40,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        _ => {
            return Err(format!(
                "unknown unit {unit:?}: use K, M, G, T or kB, MB, GB, TB"
            ));
        }
    };
    Ok((n * scale as f64) as u64)
}

/// Parses a share: `1%` or a bare percentage.
pub fn percent(s: &str) -> Result<f64, String> {
    let (n, unit) = split(s)?;
    match unit {
        "" | "%" if n / 100.0 <= INJECT_MAX => Ok(n / 100.0),
        "" | "%" => Err("at most 90 %: something must arrive".into()),
        _ => Err(format!("unknown unit {unit:?}: write 1 or 1%")),
    }
}

/// Formats a time for people, with three significant digits.
pub fn time(d: Duration) -> String {
    let units = [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")];
    let seconds = d.as_secs_f64();
    // A value that would be rounded up to 1000 takes the next larger unit.
    let (scale, unit) = units
        .into_iter()
        .find(|(scale, _)| seconds >= 0.9995 * scale)
        .unwrap_or((1e-6, "µs"));
    let n = seconds / scale;
    let digits = match n {
        n if n >= 99.95 => 0,
        n if n >= 9.995 => 1,
        _ => 2,
    };
    format!("{n:.digits$} {unit}")
}

/// Formats a rate of bytes per second for people: in bits, as links are named.
pub fn bits(bytes_per_second: f64) -> String {
    let bits = bytes_per_second * 8.0;
    let units = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")];
    match units.iter().find(|(scale, _)| bits >= *scale) {
        Some((scale, unit)) => format!("{:.1} {unit}", bits / scale),
        None => format!("{bits:.0} bit/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_understood() {
        assert_eq!(duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(rate("500Mbit"), Ok(62_500_000));
        assert_eq!(rate("500M"), Ok(62_500_000));
        assert_eq!(rate("1Gbit/s"), Ok(125_000_000));
        assert_eq!(rate("1 Gbps"), Ok(125_000_000));
        assert_eq!(rate("60MB/s"), Ok(60_000_000));
        assert_eq!(size("1472"), Ok(1472));
        assert_eq!(size("256MiB"), Ok(256 << 20));
        assert_eq!(size("1T"), Ok(1 << 40));
        assert_eq!(percent("1%"), Ok(0.01));
        assert_eq!(percent("5"), Ok(0.05));
    }

    #[test]
    fn nonsense_is_refused() {
        for s in ["", "x", "-1", "1..2", "10 fortnights", "nan", "1e400"] {
            assert!(duration(s).is_err(), "{s:?}");
            assert!(rate(s).is_err(), "{s:?}");
            assert!(size(s).is_err(), "{s:?}");
            assert!(percent(s).is_err(), "{s:?}");
        }
        assert!(percent("100").is_err());
        assert!(rate("1").is_err());
    }

    #[test]
    fn people_can_read_it() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(5 << 30), "5.0 GiB");
        let nanos = |n| time(Duration::from_nanos(n));
        assert_eq!(nanos(0), "0.00 µs");
        assert_eq!(nanos(17_040), "17.0 µs");
        assert_eq!(nanos(999_900), "1.00 ms");
        assert_eq!(nanos(138_210_000), "138 ms");
        assert_eq!(nanos(2_500_000_000), "2.50 s");
        assert_eq!(bits(125e6), "1.0 Gbit/s");
        assert_eq!(bits(0.0), "0 bit/s");
    }
}
