//! Zipfian ranks, as YCSB draws them.
//!
//! Gray et al., "Quickly Generating Billion-Record Synthetic Databases", SIGMOD '94, which is what YCSB's
//! `ZipfianGenerator` implements: rank 0 is the hottest, and rank `r` has a weight of `1 / (r + 1)^theta`. The
//! two hottest ranks are exact, the others follow the continuous distribution.

/// How many terms of a zeta sum are added one by one; the rest is an integral with its corrections.
const TERMS: u64 = 10_000;

/// The sum of `1 / i^theta` for `i` from 1 to `n`, to about twelve digits; constant cost, whatever `n`.
///
/// Beyond the first terms, the Euler-Maclaurin formula: the integral, half of both ends, and the first
/// correction by the derivative.
pub fn zeta(n: u64, theta: f64) -> f64 {
    let head: f64 = (1..=n.min(TERMS)).map(|i| (i as f64).powf(-theta)).sum();
    if n <= TERMS {
        return head;
    }
    let (a, b) = (TERMS as f64, n as f64);
    let integral = if (theta - 1.0).abs() < 1e-9 {
        (b / a).ln()
    } else {
        (b.powf(1.0 - theta) - a.powf(1.0 - theta)) / (1.0 - theta)
    };
    let ends = (b.powf(-theta) - a.powf(-theta)) / 2.0;
    let slopes = theta * (a.powf(-theta - 1.0) - b.powf(-theta - 1.0)) / 12.0;
    head + integral + ends + slopes
}

/// Draws ranks below a number that may grow.
#[derive(Clone, Debug)]
pub struct Zipfian {
    n: u64,
    theta: f64,
    alpha: f64,
    zeta2: f64,
    zeta_n: f64,
    eta: f64,
}

impl Zipfian {
    /// Ranks `0..n`. `theta` is above 0 and not 1, where the formula has a pole.
    pub fn new(n: u64, theta: f64) -> Self {
        let mut zipfian = Zipfian {
            n: n.max(1),
            theta,
            alpha: 1.0 / (1.0 - theta),
            zeta2: zeta(2, theta),
            zeta_n: zeta(n.max(1), theta),
            eta: 0.0,
        };
        zipfian.settle();
        zipfian
    }

    fn settle(&mut self) {
        let rest = (2.0 / self.n as f64).powf(1.0 - self.theta);
        self.eta = (1.0 - rest) / (1.0 - self.zeta2 / self.zeta_n);
    }

    /// Grows to ranks `0..n`; the cost is one term for each new rank.
    pub fn grow(&mut self, n: u64) {
        if n <= self.n {
            return;
        }
        self.zeta_n += (self.n + 1..=n).map(|i| (i as f64).powf(-self.theta)).sum::<f64>();
        self.n = n;
        self.settle();
    }

    /// The next rank.
    pub fn next(&self, rng: &mut fastrand::Rng) -> u64 {
        let u = rng.f64();
        let uz = u * self.zeta_n;
        if uz < 1.0 || self.n == 1 {
            return 0;
        }
        if uz < 1.0 + 0.5_f64.powf(self.theta) || self.n == 2 {
            return 1;
        }
        let rank = self.n as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.n - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeta_is_the_constant_that_ycsb_carries() {
        assert!((zeta(10_000_000_000, 0.99) - 26.469_028_201_783_02).abs() < 1e-9);
        let slow: f64 = (1..=50_000).map(|i| f64::from(i).powf(-0.7)).sum();
        assert!((zeta(50_000, 0.7) - slow).abs() < 1e-9);
    }

    #[test]
    fn shares_of_the_hottest_ranks_are_those_of_the_distribution() {
        let mut rng = fastrand::Rng::with_seed(7);
        for theta in [0.5, 0.75, 0.99, 1.2, 1.5] {
            let (n, draws) = (100_000, 400_000);
            let zipfian = Zipfian::new(n, theta);
            let hottest = (0..draws).filter(|_| zipfian.next(&mut rng) < n / 5).count();
            let share = hottest as f64 / f64::from(draws);
            let exact = zeta(n / 5, theta) / zeta(n, theta);
            assert!((share - exact).abs() < 0.015, "theta {theta}: {share} drawn, {exact} expected");
        }
    }

    #[test]
    fn a_grown_generator_is_a_new_one() {
        let mut grown = Zipfian::new(1_000, 0.99);
        grown.grow(30_000);
        let new = Zipfian::new(30_000, 0.99);
        assert!((grown.zeta_n - new.zeta_n).abs() < 1e-6 && (grown.eta - new.eta).abs() < 1e-9);
    }
}
