// Which RDMA ports a process may use, as NCCL_IB_HCA says it, so that one variable steers NCCL and Cairn alike:
//
//   mlx5          ports of devices whose names begin so
//   =mlx5_0       of the device of that name alone; mlx5_0:1 (or =mlx5_0:1) of it the port 1
//   ^mlx5         all but those; ^=mlx5_0 likewise
//   a,b           any of them; the mark stands once, at the beginning
//
// (NCCL's documentation of its environment variables.) An empty text chooses all.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/status.h"

namespace cairn::transport {

struct NicPort {
  std::string device;
  int port = 0;
  bool operator==(const NicPort&) const = default;
};

// Those of `ports` that it chooses, in their order. INVALID_ARGUMENT for a text that is not one, and for one that
// chooses none, naming what there is: it never means all.
StatusOr<std::vector<NicPort>> ChooseNics(absl::string_view nccl_ib_hca,
                                          const std::vector<NicPort>& ports);

}  // namespace cairn::transport
