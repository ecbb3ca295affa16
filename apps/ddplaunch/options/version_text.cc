#include "apps/ddplaunch/options/options.h"

#include "base/build_identity.h"

namespace ddp {

std::string version_text() {
  return "ddplaunch " + std::string(version()) +
         "\n"
         "commit:    " DDP_COMMIT
         "\n"
         "compiler:  " DDP_COMPILER
         "\n"
         "libraries: " DDP_LIBRARIES "\n";
}

}  // namespace ddp
