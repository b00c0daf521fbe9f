//! Logarithms and powers of ten that are the same on every machine.
//!
//! Those of the system's mathematics library differ in their last bits. Here only + - * / are
//! used, which IEEE 754 rounds exactly.

/// The largest exponent of ten that [`pow10`] takes, in both directions.
const EXPONENT_MAX: i32 = 300;

/// 10 to the power of `exponent`.
///
/// # Panics
/// If `exponent` is beyond 300 in either direction.
pub fn pow10(exponent: i32) -> f64 {
    assert!(exponent.abs() <= EXPONENT_MAX, "10^{exponent} has no place on an axis");
    let power = (0..exponent.abs()).fold(1.0, |power: f64, _| power * 10.0);
    if exponent < 0 { 1.0 / power } else { power }
}

/// The exponent of the largest power of ten that is at most `value`, which is positive.
pub fn floor_log10(value: f64) -> i32 {
    let mut exponent = 0;
    while exponent < EXPONENT_MAX && pow10(exponent + 1) <= value {
        exponent += 1;
    }
    while exponent > -EXPONENT_MAX && pow10(exponent) > value {
        exponent -= 1;
    }
    exponent
}

/// The logarithm to base ten of a positive number, to within 10^-8.
pub fn log10(value: f64) -> f64 {
    let (mut rest, mut whole) = (value, 0.0);
    while rest >= 2.0 {
        rest /= 2.0;
        whole += 1.0;
    }
    while rest < 1.0 {
        rest *= 2.0;
        whole -= 1.0;
    }
    // Squaring the rest doubles its logarithm: each time that passes 2 is a bit of it.
    let (mut fraction, mut bit) = (0.0, 0.5);
    for _ in 0..30 {
        rest *= rest;
        if rest >= 2.0 {
            rest /= 2.0;
            fraction += bit;
        }
        bit /= 2.0;
    }
    (whole + fraction) * std::f64::consts::LOG10_2
}

#[cfg(test)]
mod tests {
    use super::{floor_log10, log10, pow10};

    #[test]
    fn logarithm_agrees_with_the_library_to_8_digits() {
        for value in [1e-12, 0.003, 0.5, 1.0, 1.5, 2.0, 9.99, 10.0, 12_345.0, 7e17] {
            let expected = f64::log10(value);
            assert!((log10(value) - expected).abs() < 1e-8, "{value}: {}", log10(value));
        }
    }

    #[test]
    fn exponent_is_that_of_the_power_at_or_below() {
        let cases = [(1.0, 0), (9.999, 0), (10.0, 1), (0.1, -1), (0.099, -2), (1e15, 15)];
        for (value, exponent) in cases {
            assert_eq!(floor_log10(value), exponent, "{value}");
        }
        assert_eq!((pow10(3), pow10(-2), pow10(0)), (1000.0, 0.01, 1.0));
    }
}
