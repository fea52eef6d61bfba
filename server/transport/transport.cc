#include "server/transport/transport.h"

#include <sys/random.h>

#include "glog/logging.h"

namespace cairn::transport {

GrantToken NewGrantToken() {
  GrantToken token;
  // Of so few bytes getrandom gives all.
  CHECK_EQ(getrandom(token.data(), token.size(), 0), static_cast<ssize_t>(token.size()));
  return token;
}

StatusOr<std::string> Transport::Answer(PeerId, absl::string_view) {
  return absl::UnimplementedError("this member's transport is asked nothing");
}

ItsReads Transport::Finish(const std::string&, const GrantToken&) {
  return ItsReads::kMayBeUnderWay;
}

}  // namespace cairn::transport
