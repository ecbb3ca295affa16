#include "base/version.h"

namespace ddp {

std::string_view version() {
  return DDP_VERSION;
}

}  // namespace ddp
