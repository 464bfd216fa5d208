//! The specification's test vectors, as tests read them.

/// Reads `spec/vectors/NAME.hex`: hex digits, white space, and comments from `#` to the line's end.
pub fn vector(name: &str) -> Vec<u8> {
    let path = format!(
        "{}/../../spec/vectors/{name}.hex",
        env!("CARGO_MANIFEST_DIR")
    );
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let digits: String = text
        .lines()
        .flat_map(|l| l.split('#').next())
        .flat_map(str::chars)
        .filter(|c| !c.is_whitespace())
        .collect();
    (0..digits.len())
        .step_by(2)
        .map(|i| u8::from_str_radix(&digits[i..i + 2], 16).unwrap())
        .collect()
}
