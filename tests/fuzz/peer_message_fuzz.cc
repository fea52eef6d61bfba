// What one member says to another, as bytes: a clean refusal, or a value that is the same when it is said again.
//
// The first byte of an input says what the others are.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "proto/frame.h"
#include "server/rpc/peer_convert.h"
#include "tests/fuzz/fuzz_support.h"

namespace cairn::testing {
namespace {

// False: the bytes are none of it.
template <typename Wire>
bool Read(absl::string_view bytes, Wire* value) {
  MessageBytes in;
  in.Set(bytes);
  FrameReader<MessageBytes> reader(
      std::shared_ptr<MessageBytes>(&in, [](MessageBytes*) {}),
      MessageReader::kMostTimesOfMembers * bytes.size() + MessageReader::kAlways);
  // As readMessageBegin sets them.
  reader.setStringSizeLimit(static_cast<int32_t>(bytes.size()) + 1);
  reader.setContainerSizeLimit(static_cast<int32_t>(bytes.size()) + 1);
  try {
    value->read(&reader);
  } catch (const apache::thrift::TException&) {
    return false;
  }
  return true;
}

template <typename Wire>
std::string Written(const Wire& value) {
  FrameWriter writer;
  value.write(writer.protocol());
  return std::string(writer.Finish().substr(kFrameHeaderBytes));
}

template <typename Wire>
void SayAgain(absl::string_view bytes) {
  Wire first;
  if (!Read(bytes, &first)) return;
  auto value = rpc::FromPeerWire(std::move(first));
  if (!value.ok()) {
    if (value.status().code() == absl::StatusCode::kInternal) Finding("a refusal that is none");
    return;
  }
  const std::string said = Written(rpc::ToPeerWire(*value));
  Wire second;
  if (!Read(said, &second)) Finding("what is said again cannot be read");
  const auto again = rpc::FromPeerWire(std::move(second));
  if (!again.ok()) Finding("what is said again is refused: " + again.status().ToString());
  if (Written(rpc::ToPeerWire(*again)) != said) Finding("it is not the same when it is said again");
}

}  // namespace
}  // namespace cairn::testing

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace cairn;
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 4) {
    case 0:
      testing::SayAgain<peerwire::Message>(bytes);
      break;
    case 1:
      testing::SayAgain<peerwire::Member>(bytes);
      break;
    case 2:
      testing::SayAgain<peerwire::GrantQuestion>(bytes);
      break;
    case 3:
      testing::SayAgain<peerwire::Granted>(bytes);
      break;
  }
  return 0;
}
