#pragma once

namespace ddp {

/// Prepares a connected TCP socket of a control link. Call it after connect() or accept(), since a short
/// limit of the back-off would also shorten the attempts to connect.
///
/// - Small messages are sent at once (TCP_NODELAY).
/// - The kernel repeats lost segments each second at the latest (TCP_RTO_MAX_MS, Linux 6.15). Older kernels
///   double the interval, so that a link may stay silent for as long again as the network was down.
/// - TCP itself does not end the link for 7 days. The leases and timeouts of master and agent end it, and
///   users choose those. Without TCP_USER_TIMEOUT a kernel with the short interval would give up after 15
///   repetitions, which is 14.4 s.
///
/// An option that the kernel does not know is skipped. Returns whether the back-off is limited.
bool set_link_options(int fd);

}  // namespace ddp
