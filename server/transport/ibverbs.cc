#include "server/transport/ibverbs.h"

#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/fd.h"
#include "server/transport/locked_memory.h"

namespace cairn::transport {
namespace {

// A peer that does not answer is given up after about half a second: seven tries of 4.096 us << 14.
constexpr uint8_t kAckTimeout = 14;
// 7 would mean seven here, too, but some devices then try for ever.
constexpr uint8_t kRetries = 6;
// 0.64 ms. Reads need no receiver that is ready; 0 would mean 655 ms, were there ever one.
constexpr uint8_t kNotReadyTimer = 12;
constexpr uint8_t kHopLimit = 64;
constexpr uint32_t kPacketNumberMask = 0xffffff;

template <typename T, int (*destroy)(T*)>
struct Destroyer {
  void operator()(T* object) const { destroy(object); }
};
using Context = std::unique_ptr<ibv_context, Destroyer<ibv_context, ibv_close_device>>;
using Domain = std::unique_ptr<ibv_pd, Destroyer<ibv_pd, ibv_dealloc_pd>>;
using Channel =
    std::unique_ptr<ibv_comp_channel, Destroyer<ibv_comp_channel, ibv_destroy_comp_channel>>;
using Queue = std::unique_ptr<ibv_cq, Destroyer<ibv_cq, ibv_destroy_cq>>;
using Pair = std::unique_ptr<ibv_qp, Destroyer<ibv_qp, ibv_destroy_qp>>;
using Registration = std::unique_ptr<ibv_mr, Destroyer<ibv_mr, ibv_dereg_mr>>;

int BytesOf(ibv_mtu mtu) { return 128 << mtu; }

ibv_mtu MtuOf(int bytes) {
  ibv_mtu mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && BytesOf(static_cast<ibv_mtu>(mtu + 1)) <= bytes) {
    mtu = static_cast<ibv_mtu>(mtu + 1);
  }
  return mtu;
}

Status StatusOf(ibv_wc_status status) {
  const std::string why = ibv_wc_status_str(status);
  switch (status) {
    case IBV_WC_SUCCESS:
      return absl::OkStatus();
    case IBV_WC_WR_FLUSH_ERR:
      return absl::CancelledError(why);
    case IBV_WC_REM_ACCESS_ERR:
    case IBV_WC_REM_INV_REQ_ERR:
    case IBV_WC_REM_OP_ERR:
      return absl::PermissionDeniedError(why);
    case IBV_WC_RETRY_EXC_ERR:
    case IBV_WC_RNR_RETRY_EXC_ERR:
    case IBV_WC_REM_ABORT_ERR:
      return absl::UnavailableError(why);
    default:
      return absl::InternalError(why);
  }
}

class Region final : public VerbsRegion {
 public:
  explicit Region(Registration registration) : registration_(std::move(registration)) {}
  uint32_t local_key() const override { return registration_->lkey; }
  uint32_t remote_key() const override { return registration_->rkey; }

 private:
  const Registration registration_;
};

class Completions final : public VerbsCompletions {
 public:
  Completions(Channel channel, Queue queue)
      : channel_(std::move(channel)), queue_(std::move(queue)) {}
  ~Completions() override {
    // Destroying the queue waits until each of its events was acknowledged.
    Clear();
  }

  ibv_cq* queue() const { return queue_.get(); }

  StatusOr<int> Poll(absl::Span<VerbsCompletion> into) override {
    std::array<ibv_wc, 32> arrived;
    const int most = static_cast<int>(std::min(into.size(), arrived.size()));
    const int count = ibv_poll_cq(queue_.get(), most, arrived.data());
    if (count < 0) return absl::InternalError("ibv_poll_cq: the completion queue overran");
    for (int i = 0; i < count; ++i) {
      into[static_cast<size_t>(i)] = {arrived[static_cast<size_t>(i)].wr_id,
                                      StatusOf(arrived[static_cast<size_t>(i)].status)};
    }
    return count;
  }
  int fd() const override { return channel_->fd; }
  Status Arm() override {
    const int error = ibv_req_notify_cq(queue_.get(), /*solicited_only=*/0);
    return error == 0 ? absl::OkStatus() : ErrnoStatus(error, "ibv_req_notify_cq");
  }
  void Clear() override {
    ibv_cq* queue = nullptr;
    void* context = nullptr;
    unsigned events = 0;
    while (ibv_get_cq_event(channel_.get(), &queue, &context) == 0) ++events;
    if (events > 0) ibv_ack_cq_events(queue_.get(), events);
  }

 private:
  const Channel channel_;
  const Queue queue_;  // goes first
};

class QueuePair final : public VerbsQueuePair {
 public:
  QueuePair(Pair pair, const VerbsPort& port, const VerbsGid& gid, const VerbsLimits& limits)
      : pair_(std::move(pair)), port_(port.number), gid_index_(gid.index), limits_(limits) {
    endpoint_.queue = pair_->qp_num;
    endpoint_.first_packet = std::random_device()() & kPacketNumberMask;
    endpoint_.ethernet = port.ethernet;
    endpoint_.lid = port.lid;
    endpoint_.gid = gid.gid;
    endpoint_.mtu_bytes = port.mtu_bytes;
    endpoint_.reads_in = limits.reads_in;
  }

  VerbsEndpoint endpoint() const override { return endpoint_; }

  Status Init() {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = static_cast<uint8_t>(port_);
    attributes.qp_access_flags = IBV_ACCESS_REMOTE_READ;  // nobody writes into another node
    return Modify(&attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
                  "to init");
  }

  Status Connect(const VerbsEndpoint& peer) override {
    if (peer.ethernet != endpoint_.ethernet) {
      return absl::UnavailableError("one end is RoCE, the other InfiniBand");
    }
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_RTR;
    attributes.path_mtu = MtuOf(std::min(peer.mtu_bytes, endpoint_.mtu_bytes));
    attributes.dest_qp_num = peer.queue;
    attributes.rq_psn = peer.first_packet;
    attributes.max_dest_rd_atomic = AtOnce(endpoint_.reads_in, endpoint_.reads_in);
    attributes.min_rnr_timer = kNotReadyTimer;
    attributes.ah_attr.port_num = static_cast<uint8_t>(port_);
    attributes.ah_attr.dlid = peer.lid;
    attributes.ah_attr.is_global = endpoint_.ethernet ? 1 : 0;
    attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index_);
    attributes.ah_attr.grh.hop_limit = kHopLimit;
    std::memcpy(attributes.ah_attr.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    CAIRN_RETURN_IF_ERROR(Modify(&attributes,
                                 IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                     IBV_QP_MIN_RNR_TIMER,
                                 "to ready to receive"));
    attributes = {};
    attributes.qp_state = IBV_QPS_RTS;
    attributes.timeout = kAckTimeout;
    attributes.retry_cnt = kRetries;
    attributes.rnr_retry = kRetries;
    attributes.sq_psn = endpoint_.first_packet;
    attributes.max_rd_atomic = AtOnce(limits_.reads_out, peer.reads_in);
    return Modify(&attributes,
                  IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                      IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
                  "to ready to send");
  }

  Status PostRead(const VerbsRead& read) override {
    ibv_sge into = {read.local_offset, read.length, read.local_key};
    ibv_send_wr request = {};
    request.wr_id = read.id;
    request.sg_list = &into;
    request.num_sge = 1;
    request.opcode = IBV_WR_RDMA_READ;
    request.send_flags = IBV_SEND_SIGNALED;
    request.wr.rdma.remote_addr = read.remote_offset;
    request.wr.rdma.rkey = read.remote_key;
    ibv_send_wr* refused = nullptr;
    const int error = ibv_post_send(pair_.get(), &request, &refused);
    if (error == 0) return absl::OkStatus();
    if (error == ENOMEM) return absl::ResourceExhaustedError("the queue pair's queue is full");
    return ErrnoStatus(error, "ibv_post_send");
  }

  Status Break() override {
    ibv_qp_attr attributes = {};
    attributes.qp_state = IBV_QPS_ERR;
    return Modify(&attributes, IBV_QP_STATE, "to error");
  }

 private:
  // At least one, at most what both ends can do, and 16: more brings nothing, and costs each its memory.
  static uint8_t AtOnce(int a, int b) {
    constexpr int kMost = 16;
    return static_cast<uint8_t>(std::clamp(std::min(a, b), 1, kMost));
  }
  Status Modify(ibv_qp_attr* attributes, int which, const char* what) {
    const int error = ibv_modify_qp(pair_.get(), attributes, which);
    return error == 0 ? absl::OkStatus()
                      : ErrnoStatus(error, absl::StrCat("queue pair ", pair_->qp_num, " ", what));
  }

  const Pair pair_;
  const int port_;
  const int gid_index_;
  const VerbsLimits limits_;
  VerbsEndpoint endpoint_;
};

std::vector<VerbsGid> GidsOf(ibv_context* context, int port, int entries) {
  std::vector<VerbsGid> gids;
  for (int index = 0; index < entries; ++index) {
    ibv_gid_entry entry = {};
    if (ibv_query_gid_ex(context, static_cast<uint32_t>(port), static_cast<uint32_t>(index), &entry,
                         0) != 0) {
      continue;  // an empty place of the table
    }
    VerbsGid gid;
    gid.index = index;
    gid.kind = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? GidKind::kRoceV2
               : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? GidKind::kRoceV1
                                                        : GidKind::kInfiniband;
    std::memcpy(gid.gid.data(), entry.gid.raw, gid.gid.size());
    gids.push_back(gid);
  }
  return gids;
}

StatusOr<VerbsPort> PortOf(ibv_context* context, const std::string& name, int number) {
  ibv_port_attr port = {};
  if (const int error = ibv_query_port(context, static_cast<uint8_t>(number), &port); error != 0) {
    return ErrnoStatus(error, absl::StrCat(name, ":", number, ": ibv_query_port"));
  }
  return VerbsPort{.number = number,
                   .active = port.state == IBV_PORT_ACTIVE,
                   .ethernet = port.link_layer == IBV_LINK_LAYER_ETHERNET,
                   .mtu_bytes = BytesOf(port.active_mtu),
                   .lid = port.lid,
                   .gids = GidsOf(context, number, port.gid_tbl_len)};
}

StatusOr<VerbsDeviceInfo> InfoOf(ibv_context* context, const std::string& name) {
  ibv_device_attr attributes = {};
  if (const int error = ibv_query_device(context, &attributes); error != 0) {
    return ErrnoStatus(error, absl::StrCat(name, ": ibv_query_device"));
  }
  VerbsDeviceInfo info;
  info.name = name;
  info.limits = {.region_bytes = attributes.max_mr_size,
                 .queue_pairs = attributes.max_qp,
                 .queued = attributes.max_qp_wr,
                 .completions = attributes.max_cqe,
                 .reads_out = attributes.max_qp_init_rd_atom,
                 .reads_in = attributes.max_qp_rd_atom};
  for (int number = 1; number <= attributes.phys_port_cnt; ++number) {
    CAIRN_ASSIGN_OR_RETURN(VerbsPort port, PortOf(context, name, number));
    info.ports.push_back(std::move(port));
  }
  return info;
}

class Device final : public VerbsDevice {
 public:
  Device(Context context, Domain domain, VerbsDeviceInfo info)
      : context_(std::move(context)), domain_(std::move(domain)), info_(std::move(info)) {}

  const VerbsDeviceInfo& info() const override { return info_; }
  StatusOr<VerbsPort> Port(int number) const override {
    return PortOf(context_.get(), info_.name, number);
  }

  // No instruction ever touches the mapping, so a page that cannot be had is an error of this call and no
  // signal. What is registered stays so without it; and a daemon that is killed has no page tables to tear
  // down.
  StatusOr<std::unique_ptr<VerbsRegion>> Register(int fd, uint64_t offset,
                                                  uint64_t length) override {
    void* const at = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd,
                          static_cast<off_t>(offset));
    if (at == MAP_FAILED) return ErrnoStatus(errno, "mapping a slab to register it");
    Registration registration(ibv_reg_mr_iova(domain_.get(), at, length, offset,
                                              IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
    const int error = errno;
    munmap(at, length);
    if (registration == nullptr) return WhyNotRegistered(error, info_.name, length);
    return std::make_unique<Region>(std::move(registration));
  }

  StatusOr<std::unique_ptr<VerbsCompletions>> MakeCompletions(int depth) override {
    Channel channel(ibv_create_comp_channel(context_.get()));
    if (channel == nullptr) return ErrnoStatus(errno, "ibv_create_comp_channel");
    const int flags = fcntl(channel->fd, F_GETFL);
    if (flags < 0 || fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK) != 0) {
      return ErrnoStatus(errno, "a completion channel that does not block");
    }
    Queue queue(ibv_create_cq(context_.get(), depth, nullptr, channel.get(), 0));
    if (queue == nullptr) return ErrnoStatus(errno, absl::StrCat("ibv_create_cq of ", depth));
    return std::make_unique<Completions>(std::move(channel), std::move(queue));
  }

  StatusOr<std::unique_ptr<VerbsQueuePair>> MakeQueuePair(const VerbsPort& port,
                                                          const VerbsGid& gid, int depth,
                                                          VerbsCompletions* completions) override {
    ibv_qp_init_attr attributes = {};
    attributes.qp_type = IBV_QPT_RC;
    attributes.send_cq = attributes.recv_cq = static_cast<Completions*>(completions)->queue();
    attributes.cap.max_send_wr = static_cast<uint32_t>(depth);
    attributes.cap.max_recv_wr = 1;
    attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
    Pair pair(ibv_create_qp(domain_.get(), &attributes));
    if (pair == nullptr) {
      return ErrnoStatus(errno, absl::StrCat(info_.name, ": a queue pair of ", depth, " reads"));
    }
    auto made = std::make_unique<QueuePair>(std::move(pair), port, gid, info_.limits);
    CAIRN_RETURN_IF_ERROR(made->Init());
    return made;
  }

 private:
  const Context context_;
  const Domain domain_;
  const VerbsDeviceInfo info_;
};

struct DeviceList {
  DeviceList() : devices(ibv_get_device_list(&count)) {}
  ~DeviceList() {
    if (devices != nullptr) ibv_free_device_list(devices);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  int count = 0;
  ibv_device** const devices;
};

}  // namespace

StatusOr<std::vector<std::string>> ListRdmaDevices() {
  const DeviceList list;
  if (list.devices == nullptr && errno != ENOSYS) {  // else the kernel knows none
    return absl::NotFoundError(
        absl::StrCat("no RDMA device can be listed: ", std::strerror(errno)));
  }
  std::vector<std::string> names;
  for (int i = 0; i < list.count; ++i) names.emplace_back(ibv_get_device_name(list.devices[i]));
  if (names.empty()) return absl::NotFoundError("this machine has no RDMA device");
  return names;
}

StatusOr<std::unique_ptr<VerbsDevice>> OpenRdmaDevice(const std::string& name) {
  const DeviceList list;
  for (int i = 0; i < list.count; ++i) {
    if (name != ibv_get_device_name(list.devices[i])) continue;
    Context context(ibv_open_device(list.devices[i]));
    if (context == nullptr) return ErrnoStatus(errno, absl::StrCat("RDMA device ", name));
    Domain domain(ibv_alloc_pd(context.get()));
    if (domain == nullptr) return ErrnoStatus(errno, absl::StrCat(name, ": ibv_alloc_pd"));
    CAIRN_ASSIGN_OR_RETURN(VerbsDeviceInfo info, InfoOf(context.get(), name));
    return std::make_unique<Device>(std::move(context), std::move(domain), std::move(info));
  }
  return absl::NotFoundError(absl::StrCat("this machine has no RDMA device ", name));
}

}  // namespace cairn::transport
