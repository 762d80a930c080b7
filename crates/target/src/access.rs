//! Who may open an export, by the names of those who have keys.

/// Who may open an export. The default is everybody who has a key, for reading and writing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// Who may write, and read; everybody if it is not said.
    pub writers: Option<Vec<String>>,
    /// Who else may read.
    pub readers: Vec<String>,
}

/// What one of them may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// Nothing: for it the export is not there.
    Nothing,
    /// Read.
    Read,
    /// Read and write.
    Write,
}

impl Access {
    /// What `principal` may do.
    pub(crate) fn right_of(&self, principal: &str) -> Right {
        let is_among = |names: &[String]| names.iter().any(|name| name == principal);
        match &self.writers {
            None => Right::Write,
            Some(writers) if is_among(writers) => Right::Write,
            Some(_) if is_among(&self.readers) => Right::Read,
            Some(_) => Right::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_are_those_of_the_lists() {
        let everybody = Access::default();
        assert_eq!(everybody.right_of("alice"), Right::Write);
        let names = |list: &[&str]| list.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        let access =
            Access { writers: Some(names(&["alice", "bob"])), readers: names(&["bob", "backup"]) };
        let rights = [
            ("alice", Right::Write),
            ("bob", Right::Write),
            ("backup", Right::Read),
            ("eve", Right::Nothing),
            ("alice+bob", Right::Nothing),
            ("", Right::Nothing),
        ];
        for (principal, right) in rights {
            assert_eq!(access.right_of(principal), right, "{principal:?}");
        }
        let nobody = Access { writers: Some(Vec::new()), readers: names(&["backup"]) };
        assert_eq!(nobody.right_of("backup"), Right::Read);
        assert_eq!(nobody.right_of("alice"), Right::Nothing);
    }
}
