//! Status of a Proxy, as section 6 of the design has it.
