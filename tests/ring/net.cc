#include "tests/ring/net.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <variant>

#include "absl/strings/str_cat.h"
#include "tests/ring/world.h"

namespace cairn::engine::ringsim {

std::string TopicOf(const peer::Message& message) {
  const std::string subject = std::visit(
      [](const auto& m) -> std::string {
        if constexpr (requires { m.delta; }) return m.delta.job;
        if constexpr (requires { m.verdict; }) return m.verdict->job;
        if constexpr (requires { m.checkpoint; }) {
          return absl::StrCat(m.checkpoint.DebugString(), " ", m.name);
        }
        if constexpr (requires { m.job; }) return m.job;
        return "";
      },
      message);
  return absl::StrCat(message.index(), " ", subject);
}

void Outbox::Put(peer::Message message) {
  std::string topic = TopicOf(message);
  for (auto& [of, state] : messages_) {
    if (of != topic) continue;
    auto* report = std::get_if<peer::Report>(&message);
    if (report != nullptr) {
      report->delta = MergeDelta(std::get<peer::Report>(state).delta, report->delta);
    }
    state = std::move(message);
    return;
  }
  messages_.emplace_back(std::move(topic), std::move(message));
}

std::vector<peer::Message> Outbox::Take() {
  std::vector<peer::Message> all;
  all.reserve(messages_.size());
  for (auto& [topic, message] : messages_) all.push_back(std::move(message));
  messages_ = {};  // links are many, and most have nothing to say: they keep no room for it
  return all;
}

// --- links

Net::Of& Net::Find(const SimNode& node) {
  const auto id = static_cast<size_t>(node.id());
  if (id >= nodes_.size()) nodes_.resize(id + 1);
  return nodes_[id];
}

void Net::Open(SimNode* node) {
  if (node->has_seat()) {
    // What was met is known to a daemon alone, and so is which ranks there are.
    Find(*node).met.Clear();
    if (node->rank() == kNoRank) return;
  }
  for (const auto& [rank, address] : node->options().ring.members) {
    if (rank == node->rank()) continue;
    Link& link = Find(*node).links[rank];
    link = {};
    link.to = rank;
    link.daemon = node->daemon();
    Beat(node, &link, world_.Millis(1, 300));
  }
}

void Net::Tell(SimNode* from, Rank to, peer::Message message) {
  if (from->rank() == kNoRank) return;
  Link* const at = Find(*from).links.Find(to);
  if (at == nullptr || at->to == kNoRank) {
    return world_.Fail(absl::StrCat("rank ", to, " is no other member"));
  }
  Link& link = *at;
  const bool first = link.outbox.empty();
  link.outbox.Put(std::move(message));
  if (first && !link.busy) Beat(from, &link, kMilli);
}

void Net::Beat(SimNode* node, Link* link, MonotonicNanos delay) {
  const uint64_t beat = ++link->beats;
  link->next = world_.clock.now + delay;
  node->After(delay, [this, node, link, beat] {
    if (link->beats == beat && !link->busy) Exchange(node, link);
  });
}

bool Net::Carries(const SimNode& from, const SimNode& to) const {
  return !cut_.contains({from.id(), to.id()});
}

// That node's link has met, or was met by, a life of the rank.
bool Net::MayHear(const SimNode& from, SimNode* to) {
  if (from.has_seat()) return Believes(*to, from);
  if (world_.At(from.rank()) != &from) return false;  // its address shows another, or nobody
  MemberId& greatest = Find(*to).met[from.rank()];
  if (from.member().incarnation < greatest.incarnation) return false;
  greatest = from.member();
  return true;
}

// As rpc/peer_book.h: who answers where the rank is dialled is met, unless a newer life was met there, or another one of
// the same incarnation.
bool Net::Meets(const SimNode& node, const SimNode& who) {
  MemberId& newest = Find(node).met[who.rank()];
  if (newest == who.member()) return true;
  if (newest.rank != kNoRank && who.member().incarnation <= newest.incarnation) return false;
  newest = who.member();
  return true;
}

// One that calls was met, or is dialled now.
bool Net::Believes(const SimNode& node, const SimNode& claims) {
  const MemberId* newest = Find(node).met.Find(claims.rank());
  if (newest != nullptr && newest->rank != kNoRank && *newest == claims.member()) return true;
  const bool shown = world_.Dial(node, claims.rank()) == &claims && claims.well() &&
                     Carries(node, claims) && Carries(claims, node);
  return shown && Meets(node, claims);
}

bool Net::Knows(const SimNode& node, const SimNode& other) {
  return !other.has_seat() || Believes(node, other);
}

// What a greeting tells: the view, and the newest life that was met at the rank of who hears it.
void Net::Learn(const SimNode& from, SimNode* to, MonotonicNanos delay) {
  const MemberId* seen = Find(from).met.Find(to->rank());
  std::optional<MemberId> life;
  if (seen != nullptr && seen->rank != kNoRank) life = *seen;
  to->After(delay, [to, life, by = from.rank(), view = from.seat().view()] {
    to->seat().Heard(view);
    const MemberId& self = to->member();
    if (!life.has_value() || life->rank != self.rank || life->instance == self.instance) return;
    if (life->incarnation < self.incarnation) return;
    to->Apply(event::LifeMet{by, *life});
    to->seat().Met(*life);
  });
}

void Net::Greet(SimNode* node, Link* link, SimNode* to, MonotonicNanos takes,
                MonotonicNanos answer) {
  if (link->connected && link->told_view == node->seat().view_version()) return;
  link->told_view = node->seat().view_version();
  if (Believes(*to, *node)) Learn(*node, to, takes);
  if (answer > 0) Learn(*to, node, answer);
}

void Net::Deliver(const SimNode& from, SimNode* to, std::vector<peer::Message> messages,
                  MonotonicNanos delay) {
  if (messages.empty()) return;
  const MemberId who = from.member();
  to->After(delay, [to, who, messages = std::move(messages)]() mutable {
    for (peer::Message& message : messages) to->Apply(event::PeerSaid{who, std::move(message)});
  });
}

void Net::End(SimNode* node, Link* link, const SimNode* met, MonotonicNanos delay) {
  link->busy = true;
  std::optional<MemberId> who;
  if (met != nullptr) who = met->member();
  node->After(delay, [this, node, link, who] {
    link->busy = false;
    link->connected = who.has_value();
    if (!who.has_value()) link->outbox.Take();
    Beat(node, link, kSecond - world_.Millis(0, 50));
    node->Apply(event::Exchanged{link->to, who});
    if (!link->outbox.empty() && !link->busy) Beat(node, link, kMilli);
  });
}

void Net::Exchange(SimNode* node, Link* link) {
  ++exchanges_;
  std::vector<peer::Message> said = link->outbox.Take();
  SimNode* to = world_.Dial(*node, link->to);
  sim::Rng& rng = world_.rng;
  const MonotonicNanos patience = link->connected ? kDeadline : kConnect;
  if (to == nullptr || to->dead()) return End(node, link, nullptr, patience);
  const bool there = Carries(*node, *to), back = Carries(*to, *node);
  if (!to->daemon_up()) {  // its machine refuses at once
    return End(node, link, nullptr, there && back ? kMilli : patience);
  }
  if (!there || rng.Permille(weather.lost)) return End(node, link, nullptr, patience);
  if (node->has_seat() && !to->paused()) {
    const bool met = back && Meets(*node, *to);
    Greet(node, link, to, kMilli, met ? 2 * kMilli : 0);
    if (!met) return End(node, link, nullptr, back ? kMilli : patience);
  }
  if (!MayHear(*node, to)) return End(node, link, nullptr, kMilli);
  MonotonicNanos takes = static_cast<MonotonicNanos>(rng.Between(50, 3000)) * 1000;
  if (rng.Permille(weather.slow)) takes = world_.Millis(10, 900);
  const bool late = rng.Permille(weather.late);
  if (late) takes = world_.Millis(3000, 6000);
  // One connection, one thread: what a link says is heard in the order in which it was said.
  link->arrives = std::max(link->arrives + 1, world_.clock.now + takes);
  takes = link->arrives - world_.clock.now;
  if (rng.Permille(weather.twice)) Deliver(*node, to, said, takes);
  Deliver(*node, to, std::move(said), takes);
  const MonotonicNanos answer = takes + static_cast<MonotonicNanos>(rng.Between(50, 3000)) * 1000;
  const bool fails = !back || to->paused() || answer > kDeadline || !MayHear(*to, node);
  if (fails) return End(node, link, nullptr, patience);
  End(node, link, to, answer);
}

}  // namespace cairn::engine::ringsim
