// Regions as both back ends describe them: where an extent lies in the owner's slabs.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/status.h"
#include "server/facts/extent.h"
#include "server/transport/transport.h"

namespace cairn::transport {

// 24 bytes: slab, offset and length, little-endian.
std::string EncodeRegion(const ExtentRef& extent);
StatusOr<ExtentRef> DecodeRegion(absl::string_view bytes);

// Which bytes of the owner's the request means. INVALID_ARGUMENT, naming the field, for one that is wrong in itself.
StatusOr<ExtentRef> BytesOf(const ReadRequest& request);

}  // namespace cairn::transport
