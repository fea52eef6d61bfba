// NodeStatus and IndexReply as JSON: the field names of proto/cairn.thrift, enumerators as people write them.
#pragma once

#include <string>

#include "cairn_types.h"

namespace cairn::client {

std::string ToJson(const wire::NodeStatus& status);
std::string ToJson(const wire::IndexReply& index);

}  // namespace cairn::client
