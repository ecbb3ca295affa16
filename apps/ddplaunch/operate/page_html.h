#pragma once

#include <string>
#include <string_view>

namespace ddp {

/// Returns the page about a job as one file without references to others. `data`: what a report shows, as
/// JSON; empty: the page fetches it from the server that it came from. `nonce`: of the server's
/// Content-Security-Policy.
std::string page_html(std::string_view data, std::string_view nonce);

}  // namespace ddp
