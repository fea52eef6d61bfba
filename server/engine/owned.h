// Values that every component reads and exactly one changes. The compiler sees to that: `Edit` is
// its owner's alone.
#pragma once

#include <utility>

namespace cairn::engine {

// Nothing is derived from it.
template <class Value, class Owner>
class Owned {
 public:
  const Value& operator*() const { return value_; }
  const Value* operator->() const { return &value_; }

 private:
  friend Owner;
  Value& Edit() { return value_; }

  Value value_{};
};

// Something is derived from it (standing.h): to edit it is to touch what it belongs to, so that
// what is derived is brought up to date before anybody reads it. Do not keep the reference that
// Edit returns beyond the change.
template <class Value, class Owner, class Of>
class Watched {
 public:
  explicit Watched(Of* of, Value value = {}) : of_(of), value_(std::move(value)) {}
  Watched(const Watched&) = delete;
  Watched& operator=(const Watched&) = delete;

  const Value& operator*() const { return value_; }
  const Value* operator->() const { return &value_; }

 private:
  friend Owner;
  Value& Edit() {
    of_->Touch();
    return value_;
  }

  Of* const of_;
  Value value_;
};

}  // namespace cairn::engine
