#pragma once

#include <stdexcept>

#include <boost/system/result.hpp>

#include "base/error.h"

namespace ddp {

/// The value or the Error. Everything below apps/ returns this; exceptions are for broken invariants only.
template <class T = void>
using Result = boost::system::result<T, Error>;

/// Found by boost::system::result: value() of a failed result is a broken invariant.
[[noreturn]] inline void throw_exception_from_error(const Error& error, const boost::source_location&) {
  throw std::logic_error("unchecked error: " + error.text);
}

}  // namespace ddp
