#include "server/transport/region.h"

#include "absl/strings/str_cat.h"
#include "common/codec.h"

namespace cairn::transport {

std::string EncodeRegion(const ExtentRef& extent) {
  std::string region;
  AppendInteger(&region, extent.slab);
  AppendInteger(&region, extent.offset);
  AppendInteger(&region, extent.length);
  return region;
}

StatusOr<ExtentRef> DecodeRegion(absl::string_view bytes) {
  Cursor cursor(bytes);
  ExtentRef extent;
  if (!cursor.Take(&extent.slab) || !cursor.Take(&extent.offset) || !cursor.Take(&extent.length) ||
      cursor.left() != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("region: ", bytes.size(), " bytes, not those of a region"));
  }
  return extent;
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
