#include "server/transport/region.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace cairn::transport {
namespace {

constexpr size_t kNumbers = 3;

}  // namespace

std::string EncodeRegion(const ExtentRef& extent) {
  const uint64_t numbers[kNumbers] = {extent.slab, extent.offset, extent.length};
  return std::string(reinterpret_cast<const char*>(numbers), sizeof(numbers));
}

StatusOr<ExtentRef> DecodeRegion(absl::string_view bytes) {
  uint64_t numbers[kNumbers] = {};
  if (bytes.size() != sizeof(numbers)) {
    return absl::InvalidArgumentError(
        absl::StrCat("region: ", bytes.size(), " bytes, not ", sizeof(numbers)));
  }
  std::memcpy(numbers, bytes.data(), sizeof(numbers));
  return ExtentRef{numbers[0], numbers[1], numbers[2]};
}

StatusOr<ExtentRef> BytesOf(const ReadRequest& request) {
  if (request.length == 0 || request.length > kMaxReadBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("length: ", request.length, " is not in 1 to ", kMaxReadBytes));
  }
  const auto within = [&](uint64_t offset, uint64_t room) {
    return offset <= room && request.length <= room - offset;
  };
  if (!within(request.into_offset, request.into.length)) {
    return absl::InvalidArgumentError(absl::StrCat("into_offset: ", request.length, " bytes at ",
                                                   request.into_offset, " of an extent of ",
                                                   request.into.length));
  }
  CAIRN_ASSIGN_OR_RETURN(const ExtentRef region, DecodeRegion(request.region));
  if (!within(request.offset, region.length)) {
    return absl::InvalidArgumentError(absl::StrCat("offset: ", request.length, " bytes at ",
                                                   request.offset, " of a region of ",
                                                   region.length));
  }
  return ExtentRef{region.slab, region.offset + request.offset, request.length};
}

}  // namespace cairn::transport
