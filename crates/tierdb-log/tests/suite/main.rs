//! The pool's suites, in one program: some of them wait, and others have the processors meanwhile.

mod crash;
mod damage;
mod faults;
mod paged;
mod support;
mod threads;
mod transient;
